package harness

import "time"

// CPU is processor time, in user code and in the kernel.
type CPU struct{ User, System time.Duration }

// Total is both together.
func (c CPU) Total() time.Duration { return c.User + c.System }

// Sub is what was used since before.
func (c CPU) Sub(before CPU) CPU { return CPU{c.User - before.User, c.System - before.System} }
