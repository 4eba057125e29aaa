"""What users have, as model graphs: Hugging Face configurations, GGUF files, traced graphs; and the catalogue."""
