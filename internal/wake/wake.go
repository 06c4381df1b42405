// Package wake wakes a goroutine, for work that the goroutine finds by itself.
package wake

// Up puts an element into c, which has a buffer of one, unless there is one already: then the
// receiver has not looked for work since. Up never blocks, so it may be called under a lock.
func Up(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
