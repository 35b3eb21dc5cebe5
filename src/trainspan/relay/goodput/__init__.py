"""In: . Out: . Never: ."""
