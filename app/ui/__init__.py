"""What the pages share: services (the only callers of `interp`), state, the frame, the token strip, exports."""
