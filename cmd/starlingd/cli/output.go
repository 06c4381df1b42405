package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// writeJSON writes one indented value, the form of every result with --output json.
func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// counted writes a number with its noun: "1 block", "2 blocks".
func counted[N ~int | ~int64 | ~uint64 | ~uint32](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// ask asks the person at the terminal to confirm what, and returns nil if they agree. done is its
// verb: "removed".
func ask(env *cliEnv, what, done string) error {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return usagef("%s: confirm with --yes", what)
	}
	fmt.Fprintf(env.Err, "%s. Type yes: ", what)
	answer, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	if strings.TrimSpace(answer) != "yes" {
		return usagef("nothing was %s", done)
	}
	return nil
}
