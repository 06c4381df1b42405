package testnet

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/starling-kv/starling/e2e/runner"
	"github.com/starling-kv/starling/internal/ports"
)

// composeTemplate works with docker-compose 1.29 and with `docker compose`: it has no version, and
// no feature that only one of them supports.
var composeTemplate = template.Must(template.New("docker-compose.yml").Funcs(template.FuncMap{"quote": quote}).Parse(
	`# A network of e2e/testnet, made by process {{.Owner}}. By hand, in this folder:
#
#   docker-compose --project-name {{.Project}} up -d
#   docker-compose --project-name {{.Project}} logs -f
#   docker-compose --project-name {{.Project}} down
#
# The homes belong to user {{.User}}. Nodes reach each other through the relay only: relay.json says where it listens.

x-common: &common
  user: {{quote .User}}
  restart: "no"
  stop_grace_period: 20s
  read_only: true
  tmpfs: [/tmp]
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  # The tests check the nodes themselves, and health checks would take CPU time.
  healthcheck: {disable: true}
  logging: {driver: json-file, options: {max-size: 10m}}
  labels: {{"{"}}{{quote .OwnerLabel}}: "{{.Owner}}"}

services:
  relay:
    <<: *common
    container_name: {{quote .Relay.ID}}
    image: {{quote .Relay.Image}}
    entrypoint: [{{quote .Relay.Program}}]
    command: [--config, /relay.json]
    mem_limit: 1g
    volumes: [{{quote (print .Dir "/relay.json:/relay.json:ro")}}]
    ports: ["{{.Relay.Control}}"]
{{range .Nodes}}
  {{.Name}}:
    <<: *common
    container_name: {{quote .ID}}
    image: {{quote .Image}}
    entrypoint: [{{quote .Program}}]
    command: [{{range $i, $arg := .Args}}{{if $i}}, {{end}}{{quote $arg}}{{end}}]
    environment: [{{range $i, $variable := .Env}}{{if $i}}, {{end}}{{quote $variable}}{{end}}]
    mem_limit: 2g
    volumes: [{{quote .Home}}]
    ports: ["{{.RPC}}", "{{.Metrics}}"]
    depends_on: [relay]
{{end}}
networks:
  default:
    driver: bridge
    labels: {{"{"}}{{quote .OwnerLabel}}: "{{.Owner}}"}
`))

type composeFile struct {
	Owner, Project, OwnerLabel, User, Dir string
	Relay                                 composeService
	Nodes                                 []composeService
}

type composeService struct {
	Name, ID, Image, Program string
	Args, Env                []string
	Home                     string // mount
	RPC, Metrics, Control    string // published ports
}

// writeCompose writes the compose file, with the images of the containers.
func (d *Docker) writeCompose() error {
	uid, gid := user()
	f := composeFile{
		Owner: fmt.Sprint(os.Getpid()), Project: d.project, OwnerLabel: ownerLabel, User: fmt.Sprintf("%d:%d", uid, gid),
		Dir: filepath.Dir(d.file), Relay: service(d.relay),
	}
	f.Relay.Control = publish(d.relay.ports, 0, relayFirstPort)
	for _, n := range d.nodes {
		c := d.containers[n]
		s := service(c)
		home, err := filepath.Abs(n.Home.Dir)
		if err != nil {
			return err
		}
		s.Home = home + ":" + homeInContainer
		s.Args, s.Env = n.Args(homeInContainer), n.Env
		s.RPC, s.Metrics = publish(c.ports, runner.PortRPC, rpcInContainer), publish(c.ports, runner.PortMetrics, metricsInContainer)
		f.Nodes = append(f.Nodes, s)
	}
	var text strings.Builder
	if err := composeTemplate.Execute(&text, f); err != nil {
		return err
	}
	return os.WriteFile(d.file, []byte(text.String()), 0o644)
}

func service(c *container) composeService {
	return composeService{Name: c.name, ID: c.id, Image: c.image, Program: "/bin/" + filepath.Base(c.program)}
}

// publish maps a port of this machine's loopback into a container.
func publish(held *ports.Ports, i, inContainer int) string {
	return fmt.Sprintf("%s:%d", held.Address(i), inContainer)
}

// quote writes a text as YAML that compose does not change: compose would replace $NAME.
func quote(text string) (string, error) {
	quoted, err := json.Marshal(text)
	return strings.ReplaceAll(string(quoted), "$", "$$"), err
}

// containerUser is the user of the nodes if this process is root; otherwise nodes run as this
// process's user. In both cases this user owns their homes.
const containerUser = 65532

func user() (uid, gid int) {
	if os.Geteuid() == 0 {
		return containerUser, containerUser
	}
	return os.Geteuid(), os.Getegid()
}
