//go:build race || msan || asan || avlstardebug

package avlstar

const inFrames = false
