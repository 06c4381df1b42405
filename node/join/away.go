package join

import (
	"fmt"
	"strings"

	"github.com/starling-kv/starling/node/config"
)

// Command returns the command that creates a new home next to that of c and joins the network with
// it. It is for a sharded node whose storage nodes no longer have a state that its blocks can
// continue from. height and hash identify the last header of this home, which the new home trusts;
// 0: there is none.
func Command(c *config.Config, height int64, hash []byte) string {
	address := "ADDRESS"
	if known, err := config.JoinAddresses(c); err == nil && len(known) > 0 {
		address = known[0].String()
	}
	file := config.StorageNodesPath(c.Home, c.App.State.StorageNodes)
	words := []string{"starlingd join", address, "--home", quote(c.Home + "-new"), "--moniker", quote(c.CometBFT.Moniker), "--storage-nodes", quote(file)}
	if height > 0 {
		words = append(words, fmt.Sprintf("--trust-height %d --trust-hash %X", height, hash))
	}
	return strings.Join(words, " ")
}

// quote quotes a word for a shell's command line.
func quote(s string) string {
	plain := func(r rune) bool {
		return strings.ContainsRune("/._-+:@,=%", r) || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	}
	if s != "" && strings.TrimFunc(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
