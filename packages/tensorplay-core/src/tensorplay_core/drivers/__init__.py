"""The drivers that core ships. They come in by their entry points: nothing imports them."""
