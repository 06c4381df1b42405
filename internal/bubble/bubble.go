// Package bubble lets time pass in a bubble of testing/synctest, for helpers that tests call inside
// one.
//
// Tests may call time.Sleep and time.After directly inside synctest.Test. Elsewhere tests must not
// wait for the clock (see internal/lint/waits_test.go), and the functions of this package panic.
package bubble

import "time"

// realTime is later than any time inside a bubble, whose clock starts at the beginning of 2000.
var realTime = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// After returns a channel on which the time is sent once d has passed.
func After(d time.Duration) <-chan time.Time {
	if time.Now().After(realTime) {
		panic("bubble: this waits for the real clock: call it inside synctest.Test")
	}
	return time.After(d)
}

// Sleep returns once d has passed.
func Sleep(d time.Duration) { <-After(d) }
