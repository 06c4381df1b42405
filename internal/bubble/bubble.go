// Package bubble lets time pass in a bubble of testing/synctest, for functions that tests call
// inside of one.
//
// Inside of synctest.Test itself, time.Sleep and time.After do; elsewhere a test does not wait on
// the clock (see waits_test.go in the module's root), and what is here panics.
package bubble

import "time"

// realTime is after all that a bubble sees: its clock starts at the beginning of 2000.
var realTime = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// After returns a channel on which the time is sent once d has passed.
func After(d time.Duration) <-chan time.Time {
	if time.Now().After(realTime) {
		panic("bubble: this waits on the real clock: call it inside of synctest.Test")
	}
	return time.After(d)
}

// Sleep returns once d has passed.
func Sleep(d time.Duration) { <-After(d) }
