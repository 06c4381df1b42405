//go:build noevm

package cli

import "github.com/spf13/cobra"

// newEVMCmd returns nil: this build has no engine of programs.
func newEVMCmd(*cliEnv) *cobra.Command { return nil }
