# Targets of the networks in the subfolders. Each subfolder has a Makefile that sets NETWORK and includes this file.

COMPOSE  ?= $(shell if docker compose version >/dev/null 2>&1; then echo docker compose; else echo docker-compose; fi) --project-name starling-$(NETWORK)
RPC      ?= http://127.0.0.1:26657
# Keys are written through these before a node joins, so that it has chunks to fetch.
WRITE_TO ?= $(RPC) http://127.0.0.1:26757 http://127.0.0.1:26857 http://127.0.0.1:26957
export STARLING_IMAGE = starling-$(NETWORK):latest

.PHONY: help image homes up fill join rejoin monitor status logs down clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | column -t -s "$$(printf '\t')"

image: ## build the image
	PROGRAMS='./cmd/starlingd ./e2e/byzantine $(PROGRAMS)' ../build-image.sh $(STARLING_IMAGE)

homes: ## create the nodes' homes unless they exist
	go run ../homes --dir . --chain-id $(NETWORK)-1 $(HOMES)

up: image homes ## start the validators and the Byzantine peer
	$(COMPOSE) up -d

fill: ## write 4 MB through the validators, unless already written, and wait for a snapshot
	go run ../joining fill $(WRITE_TO)

join: fill ## start a node that joins, trusting the newest header of validator-0, and report the result
	trusted=$$(../trusted-header.sh $(RPC)) && echo "$$trusted" && env $$trusted $(COMPOSE) --profile join up -d joiner
	$(COMPOSE) --profile join logs -f --no-color joiner | go run ../joining seen

rejoin: ## reset the joiner, and join again
	$(COMPOSE) --profile join rm --stop --force joiner
	$(COMPOSE) --profile join run --rm --no-deps -e STARLINGD_STATESYNC_ENABLE=false joiner unsafe-reset-all --yes
	$(MAKE) join

monitor: ## start Prometheus, http://127.0.0.1:9090 (its image is fetched from the internet)
	$(COMPOSE) --profile monitor up -d prometheus

status: ## show the status of every node
	@for node in validator-0 validator-1 validator-2 validator-3 joiner; do \
	  $(COMPOSE) --profile join exec -T $$node /bin/starlingd status || true; echo; done

logs: ## follow the logs until Ctrl-C
	$(COMPOSE) --profile join --profile monitor logs -f --tail 20

down: ## stop all nodes; the next `make up` resumes from there
	$(COMPOSE) --profile join --profile monitor down --volumes

clean: down ## stop all nodes and remove their homes
	rm -rf homes .env
