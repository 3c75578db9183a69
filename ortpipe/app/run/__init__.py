"""One run: its folder, its record, and the listeners that write and show them."""
