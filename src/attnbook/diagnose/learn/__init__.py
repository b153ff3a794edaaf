"""What a function takes: its form, library, layout, sizes, dtypes and options, and how it is called with them."""
