package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

type eventJSON struct {
	Height int64   `json:"height,omitempty"`
	Hash   string  `json:"hash,omitempty"`
	Kind   string  `json:"kind,omitempty"`
	Key    *string `json:"key,omitempty"`
	KeyHex string  `json:"key_hex,omitempty"`
	Missed bool    `json:"missed,omitempty"`
}

func newWatchCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch [PREFIX]",
		Short: "Show changes of keys that start with PREFIX as they happen, until Ctrl-C",
		Long: `Show changes of keys that start with PREFIX as they happen, until Ctrl-C.

Each line has height, kind (put, delete, grant, revoke, validator, admin) and key. If the
node disconnects, the command waits for it and reports that changes may have been missed.`,
		Example: `  starlingd watch fruit/
  starlingd watch --output json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			var prefix []byte
			if len(args) > 0 {
				var err error
				if prefix, err = parseBytes(env, "PREFIX", args[0]); err != nil {
					return err
				}
			}
			c, err := dial(ctx, env)
			if err != nil {
				return explain(err)
			}
			events, err := c.Watch(ctx, prefix)
			if err != nil {
				return explain(err)
			}
			fmt.Fprintf(env.Err, "watching %s, Ctrl-C to stop\n", c.ChainID())
			lines := json.NewEncoder(env.Out)
			for e := range events {
				switch {
				case env.JSON():
					out := eventJSON{Height: e.Height, Kind: e.Kind, KeyHex: hex.EncodeToString(e.Key), Missed: e.Missed}
					if !e.Missed {
						out.Key, out.Hash = jsonText(e.Key), fmt.Sprintf("%X", e.TxHash)
					}
					err = lines.Encode(out)
				case e.Missed:
					_, err = fmt.Fprintln(env.Err, "the node was away: changes may be missing here")
				default:
					_, err = fmt.Fprintf(env.Out, "%d\t%s\t%s\n", e.Height, e.Kind, formatBytes(env, e.Key))
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().String("chain-id", "", "chain to talk to (default: that of the home's genesis.json, else the node's word)")
	addBytesFlags(cmd.Flags())
	return cmd
}
