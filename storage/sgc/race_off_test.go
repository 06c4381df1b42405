//go:build !race

package sgc

const raceDetector = false
