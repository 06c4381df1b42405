//go:build !linux

package joinbench

import "context"

// watchCPU is for Linux only.
func watchCPU(context.Context, int) (used func() (seconds, peak float64)) {
	return func() (float64, float64) { return 0, 0 }
}
