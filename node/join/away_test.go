package join

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/node/config"
)

func TestCommand(t *testing.T) {
	c := &config.Config{Home: "/srv/it's here", CometBFT: config.DefaultCometBFT(), App: config.DefaultApp()}
	c.CometBFT.Moniker = "anna"
	require.Equal(t, `starlingd join ADDRESS --home '/srv/it'\''s here-new' --moniker anna --storage-nodes '/srv/it'\''s here/config/storage_nodes.toml'`, Command(c, 0, nil))
	c.Home, c.App.State.StorageNodes = "/srv/node", "/etc/nodes.toml"
	c.App.Join.Peers = "0123456789abcdef0123456789abcdef01234567@one:26666, 0123456789abcdef0123456789abcdef01234567@two:26666"
	require.Equal(t, "starlingd join 0123456789abcdef0123456789abcdef01234567@one:26666 --home /srv/node-new --moniker anna --storage-nodes /etc/nodes.toml --trust-height 7 --trust-hash AB01",
		Command(c, 7, []byte{0xab, 1}))
}
