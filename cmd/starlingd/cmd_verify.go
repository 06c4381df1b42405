package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/node"
)

func newVerifyCmd(env *cliEnv) *cobra.Command {
	var opts node.VerifyOptions
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check the state on disk of a stopped node against its root",
		Long: `Reads every key of the state on disk, computes the root anew, and compares it
with the app hash that was stored with it and with the one that the next block's
header names. The node must be stopped. Nothing is changed.

Exit status 6 says that data is damaged: the message names the file or folder
and the way out.`,
		Example: `  starlingd verify
  starlingd verify --snapshots --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return offline(cmd, env, func(ctx context.Context, config *node.Config) error {
				shown := stages{env: env, unit: "keys"}
				opts.Progress = func(folder string, done, total uint64) { shown.at("reading "+folder, done, total) }
				result, err := node.Verify(ctx, config, opts)
				shown.end()
				if env.JSON() {
					if wrong := writeJSON(env.Out, result); wrong != nil {
						return wrong
					}
					return err
				}
				showVerification(env, result, err)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&opts.Snapshots, "snapshots", false, "check the stored snapshots, too")
	return cmd
}

func showVerification(env *cliEnv, result node.Verification, err error) {
	if result.State == nil && err == nil {
		fmt.Fprintln(env.Out, "there is no state: the node has not committed a block, or its join was interrupted")
	}
	states := result.Snapshots
	if result.State != nil {
		states = append([]node.VerifiedState{*result.State}, states...)
	}
	for _, s := range states {
		compared := "no header of it is here"
		if s.Header > 0 {
			compared = fmt.Sprintf("as header %d names it", s.Header)
		}
		fmt.Fprintf(env.Out, "good: %s: height %d, %d keys, %s, app hash %s, %s\n", s.Folder, s.Height, s.Keys, byteCount(s.Bytes), s.AppHash, compared)
	}
}
