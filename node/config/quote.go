package config

import "strings"

// plain are the letters that a shell takes as they are, wherever they stand.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%+,-./:=@_"

// Quote writes one argument of a command that a person is told to type, as a POSIX shell reads it
// (IEEE Std 1003.1, 2.2.2): in single quotes where it needs them.
func Quote(argument string) string {
	if argument != "" && strings.Trim(argument, plain) == "" {
		return argument
	}
	return "'" + strings.ReplaceAll(argument, "'", `'\''`) + "'"
}
