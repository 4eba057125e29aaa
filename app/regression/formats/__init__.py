"""Reports of a check in the formats of other tools: JUnit XML, SARIF, GitHub's workflow commands, Markdown."""
