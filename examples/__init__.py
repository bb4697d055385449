"""Programs that use fennelq as users do, with public names only."""
