"""evert's agents under verl's trainers."""
