package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/starling-kv/starling/client"
)

// A passphrase comes from a file, a variable or the terminal, in this order. It has no flag,
// because every user of a machine can read the command lines of its processes.
const (
	passphraseFlag    = "passphrase-file"
	newPassphraseFlag = "new-passphrase-file"
	// maxPassphrase limits the passphrase read from a file, in bytes.
	maxPassphrase = 1024
	// minPassphrase is the minimum length of a new passphrase.
	minPassphrase = 8
)

// variableOf returns the name of the variable that holds the passphrase, for the flag that names
// its file.
func variableOf(flag string) string {
	return "STARLINGD_" + strings.ReplaceAll(strings.ToUpper(strings.TrimSuffix(flag, "-file")), "-", "_")
}

// addPassphraseFlag adds the flag for the passphrase of something: a key or a backup.
func addPassphraseFlag(flags *pflag.FlagSet, of string) {
	flags.String(passphraseFlag, "",
		"file whose first line is the passphrase of the "+of+" (or the variable "+variableOf(passphraseFlag)+")")
}

// errNoPassphrase means that no passphrase was given and there is no terminal.
var errNoPassphrase = errors.New("no passphrase")

// givenPassphrase returns the passphrase from a flag's file or its variable, or errNoPassphrase if
// neither is set.
func givenPassphrase(env *cliEnv, flag string) (string, error) {
	path := env.V.GetString(flag)
	if path == "" {
		if given := os.Getenv(variableOf(flag)); given != "" {
			return given, nil
		}
		return "", errNoPassphrase
	}
	f, err := os.Open(path)
	if err != nil {
		return "", usagef("--%s: %w", flag, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxPassphrase+1))
	if err != nil {
		return "", fmt.Errorf("--%s: %w", flag, err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	line = strings.TrimSuffix(line, "\r")
	switch {
	case line == "":
		return "", usagef("--%s: the first line of %s is empty", flag, path)
	case len(line) > maxPassphrase:
		return "", usagef("--%s: the first line of %s has more than %d bytes", flag, path, maxPassphrase)
	}
	return line, nil
}

// passphraseOf returns the passphrase of an encrypted key.
func passphraseOf(env *cliEnv, name string) (string, error) {
	given, err := givenPassphrase(env, passphraseFlag)
	if !errors.Is(err, errNoPassphrase) {
		return given, err
	}
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return "", usagef("key %q is encrypted: use --%s FILE with its passphrase, or set %s", name, passphraseFlag, variableOf(passphraseFlag))
	}
	return readPassphrase(env, fmt.Sprintf("Passphrase of %s: ", name))
}

// newPassphrase returns the passphrase for storing or exporting a key. It returns "" if there is no
// terminal, or if the user enters none.
func newPassphrase(env *cliEnv, flag, what string) (string, error) {
	given, err := givenPassphrase(env, flag)
	switch {
	case errors.Is(err, errNoPassphrase) && !term.IsTerminal(int(os.Stdin.Fd())):
		return "", nil
	case errors.Is(err, errNoPassphrase):
		if given, err = readPassphrase(env, fmt.Sprintf("New passphrase of %s (empty: none): ", what)); given == "" || err != nil {
			return "", err
		}
		again, err := readPassphrase(env, "Repeat the passphrase: ")
		if err != nil {
			return "", err
		}
		if given != again {
			return "", usagef("the passphrases differ: nothing was done")
		}
	case err != nil:
		return "", err
	}
	if len(given) < minPassphrase {
		return "", usagef("a passphrase needs at least %d characters: nothing was done", minPassphrase)
	}
	return given, nil
}

// readPassphrase prompts at the terminal, without echo.
func readPassphrase(env *cliEnv, prompt string) (string, error) {
	fmt.Fprint(env.Err, prompt)
	line, err := term.ReadPassword(int(os.Stdin.Fd()))
	fmt.Fprintln(env.Err)
	if err != nil {
		return "", fmt.Errorf("read the passphrase: %w", err)
	}
	return string(line), nil
}

// warnUnencrypted prints a warning if a key was stored unencrypted.
func warnUnencrypted(env *cliEnv, info client.KeyInfo) {
	if !info.Encrypted && !env.JSON() {
		fmt.Fprintf(env.Err, "%s is stored unencrypted: `starlingd keys passphrase %s` encrypts it\n", info.Name, info.Name)
	}
}
