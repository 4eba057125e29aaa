"""Equal workers, of which every form of a serving plan is made: their search, and what plans say of them."""
