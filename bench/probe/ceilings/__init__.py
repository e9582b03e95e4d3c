"""What each part of the input pipeline could do alone."""
