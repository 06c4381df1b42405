// Package backoff computes how long to wait after failures. It does not wait: package sleep does.
package backoff

import "time"

// Doubled returns d·2ⁿ, or limit if that is less.
func Doubled(d time.Duration, n int, limit time.Duration) time.Duration {
	for ; n > 0 && d < limit; n-- {
		d *= 2
	}
	return min(d, limit)
}
