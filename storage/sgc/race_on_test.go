//go:build race

package sgc

const raceDetector = true
