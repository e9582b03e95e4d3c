"""How functions of users are called: albumentations, Pillow, random draws, the lock."""
