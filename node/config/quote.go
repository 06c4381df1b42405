package config

import "strings"

// plain are the characters that a shell never interprets.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%+,-./:=@_"

// Quote returns an argument in the form in which a user types it into a POSIX shell (IEEE Std
// 1003.1, 2.2.2): in single quotes if necessary.
func Quote(argument string) string {
	if argument != "" && strings.Trim(argument, plain) == "" {
		return argument
	}
	return "'" + strings.ReplaceAll(argument, "'", `'\''`) + "'"
}
