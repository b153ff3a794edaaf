"""What a function is asked: the battery, and what one call cannot show; and what came beside what is right."""
