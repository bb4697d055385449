"""Programs that use fennelq the way its users do: public names only."""
