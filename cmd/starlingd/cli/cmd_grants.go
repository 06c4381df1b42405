package cli

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/client"
)

func newGrantsCmd(env *cliEnv) *cobra.Command {
	show := func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return group(cmd, args)
		}
		return listGrants(cmd, env)
	}
	cmd := &cobra.Command{
		Use:     "grants",
		Short:   "Show the grants to write keys",
		Long:    "Lists all grants, as \"starlingd grants list\" does: account, key prefix and byte quota.\n\n" + verifyHelp,
		Example: "  starlingd grants --verify",
		Args:    cobra.ArbitraryArgs, // show refuses them
		RunE:    show,
	}
	addReadFlags(cmd.Flags())
	list := &cobra.Command{
		Use:     "list",
		Short:   "List all grants",
		Long:    "List all grants: account, key prefix and byte quota.\n\n" + verifyHelp,
		Example: "  starlingd grants list --verify",
		Args:    cobra.NoArgs,
		RunE:    show,
	}
	addReadFlags(list.Flags())
	cmd.AddCommand(list)
	return cmd
}

type grantJSON struct {
	Grantee   string  `json:"grantee"` // public key in hex; "*": everyone
	Prefix    *string `json:"prefix,omitempty"`
	PrefixHex string  `json:"prefix_hex"`
	Quota     uint64  `json:"quota"` // 0: no limit
}

func listGrants(cmd *cobra.Command, env *cliEnv) error {
	ctx, cancel := callContext(cmd, env)
	defer cancel()
	c, options, err := reader(ctx, env)
	if err != nil {
		return explain(err)
	}
	head := app.GrantKey(make([]byte, app.AccountBytes), nil)
	everyone := string(head[len(head)-app.AccountBytes:])
	head = head[:len(head)-app.AccountBytes]
	keys, _ := keyring(env).List() // names are optional
	who := (&planner{keys: keys}).who
	var (
		state client.State
		list  = []grantJSON{}
		lines []string
	)
	for start := head; start != nil; {
		page, err := c.Range(ctx, start, client.PrefixEnd(head), options...)
		if err != nil {
			return explain(err)
		}
		for _, e := range page.Entries {
			rest := e.Key[len(head):]
			if len(rest) < app.AccountBytes || len(e.Value) != 8 {
				return errors.New("the node's response is not a Starling state: invalid grant record")
			}
			account, prefix, quota := rest[:app.AccountBytes], rest[app.AccountBytes:], binary.BigEndian.Uint64(e.Value)
			one := grantJSON{Grantee: hex.EncodeToString(account), Prefix: jsonText(prefix), PrefixHex: hex.EncodeToString(prefix), Quota: quota}
			if string(account) == everyone {
				one.Grantee, account = app.Everyone, nil
			}
			list = append(list, one)
			lines = append(lines, fmt.Sprintf("%s\t%q\t%s", who(account), prefix, quotaText(e.Value)))
		}
		state, start = page.State, page.Next
		options = append(options[:len(options):len(options)], client.AtHeight(page.Height))
	}
	if env.JSON() {
		return writeJSON(env.Out, struct {
			stateJSON
			Grants []grantJSON `json:"grants"`
		}{toStateJSON(state), list})
	}
	noteState(env, state, 0)
	for _, line := range lines {
		fmt.Fprintln(env.Out, line)
	}
	return nil
}

// grantText describes the value of a grant record in a plan; nil: no grant.
func grantText(quota []byte) string {
	if len(quota) != 8 {
		return "not granted"
	}
	return "granted, " + quotaText(quota)
}

// quotaText describes the quota in the value of a grant record; a malformed value has none.
func quotaText(quota []byte) string {
	switch {
	case len(quota) != 8:
		return "none"
	case binary.BigEndian.Uint64(quota) == 0:
		return "without a quota"
	}
	return counted(binary.BigEndian.Uint64(quota), "byte") + " at most"
}
