package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node/config"
	"github.com/starling-kv/starling/node/home"
	"github.com/starling-kv/starling/node/join"
)

func newSnapshotsExportCmd(env *cliEnv) *cobra.Command {
	var o home.ExportOptions
	network := false
	cmd := &cobra.Command{
		Use: "export FILE", Aliases: []string{"dump"},
		Short: "Write a snapshot of a stopped node, or of the network, to a file",
		Long: `Writes the newest stored snapshot of a stopped node to a file, or the state on disk if no
snapshot is stored. Each chunk is verified before it is written. The same state gives the
same file.

The data go to FILE.partial, which is renamed to FILE once it is complete; Ctrl-C removes
it. An import needs the app hash from another source: it is in the header of the block
after the snapshot's height.

With --from-network it fetches the newest snapshot from other nodes, while all of them
run: the way to back up a network whose state is sharded. It uses only the home's
configuration and genesis file, so a node may run there. Headers come from validators,
chunks from all nodes that serve the snapshot, storage nodes among them. All of it is proved
from the header of statesync.trust_height and trust_hash. The chunks are first stored in
FILE.state: after Ctrl-C, the same command continues.

Exit status 6 means that data are damaged: the message names the file or folder and
the fix.`,
		Example: `  starlingd snapshots export demo.snapshot
  starlingd snapshots export demo.snapshot --height 12000 --overwrite
  starlingd snapshots export demo.snapshot --from-network --join.peers ID@HOST:26666 \
      --statesync.trust_height 1000 --statesync.trust_hash A1B2…`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Height < 0 {
				return usagef("--height is %d, it must be above 0", o.Height)
			}
			o.File = args[0]
			if network {
				if o.Height > 0 {
					return usagef("--height cannot be used with --from-network: it fetches the newest snapshot")
				}
				return exportFromNetwork(cmd, env, home.NetworkExportOptions{File: o.File, Overwrite: o.Overwrite})
			}
			return offline(cmd, env, func(ctx context.Context, config *config.Config) error {
				keys, bytes := stages{env: env, unit: "keys"}, stages{env: env, unit: bytesUnit}
				o.Reading = func(done, total uint64) { keys.at("reading the state on disk", done, total) }
				o.Writing = func(done, total uint64) {
					keys.end()
					bytes.at("writing "+o.File, done, total)
				}
				result, err := home.ExportSnapshot(ctx, config, o)
				keys.end()
				bytes.end()
				if err != nil {
					return exportError(err, o.Overwrite)
				}
				if env.JSON() {
					return writeJSON(env.Out, result)
				}
				what, compared := "the state on disk", "no header to compare with"
				if result.Stored {
					what = "the stored snapshot"
				}
				if result.Header > 0 {
					compared = fmt.Sprintf("matches header %d", result.Header)
				}
				fmt.Fprintf(env.Out, "exported %s: %s, %s\n", what, snapshotLine(result.SnapshotFile), compared)
				return nil
			})
		},
	}
	cmd.Flags().Int64Var(&o.Height, "height", 0, "height of a stored snapshot, or of the state on disk (default: the newest)")
	cmd.Flags().BoolVar(&o.Overwrite, "overwrite", false, "replace an existing FILE")
	cmd.Flags().BoolVar(&network, "from-network", false, "fetch the newest snapshot from the network's nodes")
	config.AddTrustFlags(cmd.Flags())
	return cmd
}

// exportError adds a hint to the error about an existing file, unless --overwrite is set already:
// then another process writes the file, or it is not a regular one.
func exportError(err error, overwrite bool) error {
	if errors.Is(err, home.ErrFileExists) && !overwrite {
		return fmt.Errorf("%w: choose another name, or use --overwrite", err)
	}
	return err
}

// exportFromNetwork shows the progress of home.ExportFromNetwork, and its result.
func exportFromNetwork(cmd *cobra.Command, env *cliEnv, o home.NetworkExportOptions) (err error) {
	conf, err := config.Load(env.Home, env.V)
	if err != nil {
		return err
	}
	if o.Logger, err = config.NewLogger(env.Err, "error", conf.CometBFT.LogFormat); err != nil {
		return err
	}
	ctx, cancel := untilSignal(cmd.Context())
	defer cancel()
	fetched, written := stages{env: env, unit: bytesUnit}, stages{env: env, unit: bytesUnit}
	o.Fetching = func(p join.Progress) {
		if p.Bytes > 0 {
			fetched.at(fmt.Sprintf("fetching the state of height %d", p.Height), min(p.BytesDone, p.Bytes), p.Bytes)
		}
	}
	o.Writing = func(done, total uint64) {
		fetched.end()
		written.at("writing "+o.File, done, total)
	}
	result, err := home.ExportFromNetwork(ctx, conf, o)
	fetched.end()
	written.end()
	switch {
	case err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled):
		return errors.New("interrupted: the same command continues")
	case err != nil:
		return exportError(err, o.Overwrite)
	case env.JSON():
		return writeJSON(env.Out, result)
	}
	fmt.Fprintf(env.Out, "exported the network's snapshot: %s\n", snapshotLine(result))
	return nil
}

func newSnapshotsImportCmd(env *cliEnv) *cobra.Command {
	var o home.ImportOptions
	var appHash string
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Start a node's state from a snapshot file",
		Long: `Imports a snapshot file as the state of a stopped node without state: a new home after
"starlingd init --genesis FILE", or a home after "starlingd unsafe-reset-all". Nothing in
the file is trusted. Every chunk is verified against the app hash of its height, which
comes from another source:

  a light client   --statesync.trust_height and trust_hash, as in the [statesync]
                   section of config.toml, with the transports of peers (those of
                   p2p.persistent_peers and p2p.seeds, or --join.peers), or with
                   two --statesync.rpc_servers. It also fetches what consensus
                   needs to continue: header, validators and commit of that height.
                   The chain must be at least two blocks further. The next start
                   fetches the blocks since then from its peers.
  blocks in home   if CometBFT's data exist and only the state is missing
                   (data/state was removed): the header of the next block has the
                   app hash. The next start executes the blocks since then.
  --app-hash HEX   a trusted app hash, compared with either of the above. Alone it
                   proves the state, but a node cannot start from it, because the
                   file does not contain the consensus part. It is enough with
                   --state-only, for the application of a separate cometbft
                   (starlingd abci) that has the blocks after that height and
                   executes them at its next start.

FILE - is standard input, which is copied to a temporary file first.

Ctrl-C, a damaged file or a full disk leave the home unchanged; after a kill, the
next start or import removes the remains. The validator's signing state is never
changed.

Exit status 3 means that the file's state is not the trusted one, 6 that the file is
damaged.`,
		Example: `  starlingd snapshots import demo.snapshot --join.peers HOST:26666 \
      --statesync.trust_height 1000 --statesync.trust_hash A1B2…
  starlingd snapshots import demo.snapshot --state-only --app-hash C3D4…`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if o.File = args[0]; appHash != "" {
				if o.AppHash, err = hex.DecodeString(strings.TrimPrefix(appHash, "0x")); err != nil || len(o.AppHash) != 32 {
					return usagef("--app-hash is %q, it must be 64 hex digits", appHash)
				}
			}
			var done func()
			if o.File, done, err = inputFile(cmd, o.File); err != nil {
				return err
			}
			defer done()
			conf, err := importConfig(env, o.StateOnly)
			if err != nil {
				return err
			}
			if o.Logger, err = config.NewLogger(env.Err, "error", conf.CometBFT.LogFormat); err != nil {
				return err
			}
			ctx, cancel := untilSignal(cmd.Context())
			defer cancel()
			bytes, keys := stages{env: env, unit: bytesUnit}, stages{env: env, unit: "keys"}
			o.Progress = func(stage home.ImportStage, done, total uint64) {
				if stage == home.ImportWriting {
					bytes.at(string(stage), done, total)
					return
				}
				bytes.end()
				keys.at(string(stage), done, total)
			}
			result, err := home.ImportSnapshot(ctx, conf, o)
			bytes.end()
			keys.end()
			switch {
			case err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled):
				return errors.New("interrupted: nothing was imported")
			case errors.Is(err, home.ErrOtherState):
				return refusedError{err}
			case err != nil:
				return err
			case env.JSON():
				return writeJSON(env.Out, result)
			}
			fmt.Fprintf(env.Out, "imported %s, trusted: %s\n", snapshotLine(result.SnapshotFile), result.Trust)
			switch {
			case o.StateOnly:
				fmt.Fprintf(env.Out, "only the state was imported: the cometbft of `starlingd abci` must have the blocks from %d on\n", result.Height+1)
			case result.Executes > 0:
				fmt.Fprintf(env.Out, "the next start executes %s\n", counted(result.Executes, "block"))
			default:
				fmt.Fprintf(env.Out, "the next start continues from block %d, with blocks from its peers\n", result.Height+1)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&appHash, "app-hash", "", "trusted app hash of the file's height, in hex")
	cmd.Flags().BoolVar(&o.StateOnly, "state-only", false, "import only the state, for a separate cometbft")
	config.AddTrustFlags(cmd.Flags())
	return cmd
}

// importConfig returns the configuration of a home, overridden by the flags. With --state-only, the
// home needs no config.toml.
func importConfig(env *cliEnv, stateOnly bool) (*config.Config, error) {
	conf, err := config.Load(env.Home, env.V)
	if !stateOnly || !errors.Is(err, config.ErrNotInitialised) {
		return conf, err
	}
	conf = &config.Config{Home: env.Home, CometBFT: config.DefaultCometBFT()}
	conf.CometBFT.SetRoot(env.Home)
	conf.App, err = config.LoadApp(env.Home, env.V)
	return conf, err
}

// snapshotLine describes a snapshot file in one line.
func snapshotLine(s home.SnapshotFile) string {
	return fmt.Sprintf("%s: chain %s, height %d, app hash %s, %s, %s, in the file %s, %.1f s",
		s.File, s.ChainID, s.Height, s.AppHash, counted(s.Chunks, "chunk"), humanize.IBytes(s.Bytes), humanize.IBytes(s.FileBytes), s.Seconds)
}
