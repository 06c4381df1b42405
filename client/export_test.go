package client

import "time"

// SetCallTimeout replaces the limit of a call, which is too short for a busy machine.
func SetCallTimeout(limit time.Duration) { callTimeout = limit }
