package config

import (
	"fmt"
	"io"
)

// WriteReference writes the settings of app.toml, those of config.toml that differ from CometBFT's
// defaults, and what depends on the network, as Markdown.
func WriteReference(w io.Writer) error {
	wan, wanApp := tuned(WAN)
	lan, lanApp := tuned(LAN)
	fmt.Fprint(w, "Every setting is also a flag and an environment variable:"+
		" `[state] mode` is `--state.mode` and `STARLINGD_STATE_MODE`.\n"+
		"Flags override variables, and variables override files.\n\n## app.toml\n\nAs `starlingd init` writes it:\n\n```toml\n")
	if err := appTemplate.Execute(w, wanApp); err != nil {
		return err
	}
	fmt.Fprint(w, "```\n\n## What `init --network` changes\n\n| setting | `wan`, the default | `lan` |\n| --- | --- | --- |\n")
	theirs := append(fieldsOf(wan), fieldsOf(wanApp)...)
	for i, f := range append(fieldsOf(lan), fieldsOf(lanApp)...) {
		if a, b := fmt.Sprint(theirs[i].value), fmt.Sprint(f.value); a != b {
			fmt.Fprintf(w, "| `%s` | %s | %s |\n", f.name, a, b)
		}
	}
	for _, n := range []Network{WAN, LAN} {
		fmt.Fprintf(w, "\n### config.toml of `%s`\n\n| setting | reason |\n| --- | --- |\n", n)
		for _, t := range n.tunings() {
			name := t.key
			if t.section != "" {
				name = t.section + "." + t.key
			}
			fmt.Fprintf(w, "| `%s` | %s |\n", name, t.why)
		}
	}
	_, err := fmt.Fprint(w, "\nAll other settings of config.toml have CometBFT's defaults, and the file explains them.\n")
	return err
}
