"""Where rows come from, how they are split and shuffled, and their digest."""
