"""evert's agents under TRL's trainers."""
