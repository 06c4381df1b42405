//go:build !race

package avlstar

const underRace = false
