"""The search over candidates: bounds, order and stage borders. Costs are in `costs`."""
