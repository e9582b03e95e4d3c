"""Pictures of samples, as training gets them."""
