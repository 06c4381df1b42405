//go:build cgo && linux && rdma

package verbs

// SendLong sends a message that is longer than Send allows.
func SendLong(q Queue, length int) error { return q.(*queue).send(nil, length, 0) }
