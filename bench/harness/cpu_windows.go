package harness

// CPUTime is not measured here.
func CPUTime() CPU { return CPU{} }
