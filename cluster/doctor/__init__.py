"""Says whether an installation can serve, and what to do where it cannot; and packs what an investigation
needs without what was asked of it: `kvquilt doctor`."""
