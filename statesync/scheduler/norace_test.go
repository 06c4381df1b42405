//go:build !race

package scheduler

const worlds = 2000
