package cli

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/client"
)

type eventJSON struct {
	Height      int64   `json:"height"`
	Token       string  `json:"token"` // resumes after this event
	Hash        string  `json:"hash"`
	Kind        string  `json:"kind"`
	Key         *string `json:"key,omitempty"`
	KeyHex      string  `json:"key_hex"`
	Value       *string `json:"value,omitempty"`
	ValueHex    string  `json:"value_hex,omitempty"`
	Previous    *string `json:"previous,omitempty"`
	PreviousHex string  `json:"previous_hex,omitempty"`
	Omitted     bool    `json:"previous_omitted,omitempty"`
	Proved      bool    `json:"proved,omitempty"`
}

// watchFlags select the events to show, together with the prefix.
type watchFlags struct {
	height   int64
	token    string
	previous bool
	count    int
}

func newWatchCmd(env *cliEnv) *cobra.Command {
	var f watchFlags
	cmd := &cobra.Command{
		Use:   "watch [PREFIX]",
		Short: "Show changes of keys that start with PREFIX until Ctrl-C",
		Long: `Show changes of keys that start with PREFIX until Ctrl-C: changes from now on, or all
changes since a height or a token.

Each line has height, kind, key and value. The kind is put or delete, or for system
records grant, revoke, validator, admin, upgrade, threshold or proposal. With --prev each
line also has the previous value, "-" if there was none; with --output json, the token that
resumes after it. If the connection is lost, the next address of --node is used: no event
is lost or repeated. Nodes keep the events of recent blocks ([state] keep_events in
app.toml); for older events the command ends and names the oldest available height. It may
begin at a height that does not exist yet, up to 1,000 blocks above the newest one.

Events are unverified. With --verify, each value is proved by a read of its key after that
block, if nodes still serve that height; "proved" follows it.

` + verifyHelp,
		Example: `  starlingd watch fruit/
  starlingd watch --from-height 1000 --prev
  starlingd watch fruit/ --token 1203.7 --verify --output json`,
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
			options, err := f.options(env, cmd)
			if err != nil {
				return err
			}
			c, _, err := reader(ctx, env)
			if err != nil {
				return explain(err)
			}
			w, err := c.Watch(ctx, prefix, options...)
			if errors.As(err, new(*client.FutureError)) {
				return usageError{fmt.Errorf("%w: begin there or below", err)}
			}
			if err != nil {
				return explain(err)
			}
			fmt.Fprintf(env.Err, "watching %s from %v, Ctrl-C to stop\n", c.ChainID(), w.Token())
			return f.show(ctx, env, w)
		},
	}
	flags := cmd.Flags()
	flags.Int64Var(&f.height, "from-height", 0, "begin with the changes of this block")
	flags.StringVar(&f.token, "token", "", "continue at HEIGHT.INDEX, which an earlier watch printed")
	flags.IntVar(&f.count, "count", 0, "exit after this many changes; 0: never")
	flags.BoolVar(&f.previous, "prev", false, "also show the previous values")
	flags.String("chain-id", "", "chain id (default: that of the home's genesis.json, otherwise the node's)")
	addBytesFlags(flags)
	addVerifyFlags(flags)
	return cmd
}

func (f *watchFlags) options(env *cliEnv, cmd *cobra.Command) ([]client.WatchOption, error) {
	var options []client.WatchOption
	switch {
	case f.token != "" && cmd.Flags().Changed("from-height"):
		return nil, usagef("use either --from-height or --token")
	case f.token != "":
		t, err := client.ParseToken(f.token)
		if err != nil {
			return nil, usagef("--token: %w", err)
		}
		options = append(options, client.WatchFrom(t))
	case cmd.Flags().Changed("from-height"):
		if f.height < 1 {
			return nil, usagef("--from-height is %d, the first block has height 1", f.height)
		}
		options = append(options, client.WatchFromHeight(f.height))
	}
	if f.previous {
		options = append(options, client.WatchPrevious())
	}
	if env.V.GetBool("verify") {
		options = append(options, client.WatchVerified())
	}
	return options, nil
}

// show writes events until ctx ends.
func (f *watchFlags) show(ctx context.Context, env *cliEnv, w *client.Watcher) error {
	lines := json.NewEncoder(env.Out)
	for n := 1; ; n++ {
		var e client.Event
		// Next delivers ready events even then: the token would skip an event that was not shown.
		err := ctx.Err()
		if err == nil {
			e, err = w.Next(ctx)
		}
		switch {
		case err != nil && ctx.Err() != nil:
			fmt.Fprintf(env.Err, "to continue: --token %v\n", w.Token())
			return nil //nolint:nilerr // Ctrl-C ends it
		case errors.As(err, new(*client.CompactedError)):
			return fmt.Errorf("%w: read the keys again, and watch from the height after that", err)
		case err != nil:
			return explain(err)
		}
		if env.JSON() {
			err = lines.Encode(eventJSON{
				Height: e.Height, Token: e.Token().String(), Hash: fmt.Sprintf("%X", e.TxHash), Kind: e.Kind,
				Key: jsonText(e.Key), KeyHex: hex.EncodeToString(e.Key), Value: jsonOptional(e.Value), ValueHex: hex.EncodeToString(e.Value),
				Previous: jsonOptional(e.Previous), PreviousHex: hex.EncodeToString(e.Previous), Omitted: e.Omitted && f.previous, Proved: e.Proved,
			})
		} else {
			_, err = fmt.Fprintln(env.Out, f.line(env, e))
		}
		if err != nil || n == f.count {
			return err
		}
	}
}

func (f *watchFlags) line(env *cliEnv, e client.Event) string {
	line := fmt.Sprintf("%d\t%s\t%s\t%s", e.Height, e.Kind, formatBytes(env, e.Key), orDash(env, e.Value))
	switch {
	case f.previous && e.Omitted:
		line += "\tomitted: too large"
	case f.previous:
		line += "\t" + orDash(env, e.Previous)
	}
	if e.Proved {
		line += "\tproved"
	}
	return line
}

// jsonOptional is jsonText for a value that may be absent.
func jsonOptional(b []byte) *string {
	if b == nil {
		return nil
	}
	return jsonText(b)
}

func orDash(env *cliEnv, value []byte) string {
	if value == nil {
		return "-"
	}
	return formatBytes(env, value)
}
