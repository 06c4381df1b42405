package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/starling-kv/starling/node/config"
)

func newDocsCmd() *cobra.Command {
	var man bool
	cmd := &cobra.Command{
		Use:   "docs FOLDER",
		Short: "Write the reference of commands, settings and errors to files",
		Long: `Writes commands.md, settings.md and errors.md to a folder, which it creates: all
commands of this program; the settings of app.toml, and those of config.toml for which init
has values of its own; exit statuses and codes, with remedies. With --man, writes manual
pages of the commands instead.`,
		Example: `  starlingd docs reference
  sudo starlingd docs --man /usr/local/share/man/man1`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := args[0]
			if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // the files are public
				return err
			}
			hideMachine(cmd.Root())
			if man {
				return doc.GenManTree(cmd.Root(), &doc.GenManHeader{Source: "Starling", Manual: "Starling"}, dir)
			}
			return writeReference(cmd.Root(), dir)
		},
	}
	cmd.Flags().BoolVar(&man, "man", false, "write manual pages")
	return cmd
}

// hideMachine removes the defaults of flags that depend on the machine and its user.
func hideMachine(cmd *cobra.Command) {
	cmd.DisableAutoGenTag = true // it has today's date
	hide := func(f *pflag.Flag) {
		switch f.Name {
		case "home":
			f.DefValue = "~/.starling"
		case "moniker":
			f.DefValue = ""
		}
	}
	cmd.PersistentFlags().VisitAll(hide)
	cmd.Flags().VisitAll(hide)
	for _, sub := range cmd.Commands() {
		hideMachine(sub)
	}
}

func writeReference(root *cobra.Command, dir string) error {
	commands := bytes.NewBufferString("# Commands\n\n`starlingd docs` has written this page.\n\n")
	if err := writeCommand(commands, root); err != nil {
		return err
	}
	settings := bytes.NewBufferString("# Settings\n\n`starlingd docs` has written this page.\n\n")
	if err := config.WriteReference(settings); err != nil {
		return err
	}
	for name, page := range map[string]*bytes.Buffer{"commands.md": commands, "settings.md": settings, "errors.md": errorReference()} {
		if err := os.WriteFile(filepath.Join(dir, name), page.Bytes(), 0o644); err != nil { //nolint:gosec // see above
			return err
		}
	}
	return nil
}

// writeCommand writes a command and its subcommands. It leaves out the flags of the root, which all
// commands have, and links.
func writeCommand(w io.Writer, cmd *cobra.Command) error {
	var page bytes.Buffer
	if err := doc.GenMarkdown(cmd, &page); err != nil {
		return err
	}
	text := page.Bytes()
	for _, end := range []string{"### Options inherited", "### SEE ALSO"} {
		text, _, _ = bytes.Cut(text, []byte(end))
	}
	if _, err := fmt.Fprintf(w, "%s\n\n", bytes.TrimSpace(text)); err != nil {
		return err
	}
	if cmd.Name() == "completion" {
		return nil // cobra's own texts, one for each shell
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			if err := writeCommand(w, sub); err != nil {
				return err
			}
		}
	}
	return nil
}
