"""The backends torch, hdf5 and dali: siblings behind one contract."""
