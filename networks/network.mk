# Targets of the networks in the subfolders, each of which has a Makefile that sets NETWORK and includes this.

COMPOSE  ?= $(shell if docker compose version >/dev/null 2>&1; then echo docker compose; else echo docker-compose; fi) --project-name starling-$(NETWORK)
RPC      ?= http://127.0.0.1:26657
export STARLING_IMAGE = starling-$(NETWORK):latest

.PHONY: help image homes up join monitor status logs down clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | column -t -s "$$(printf '\t')"

image: ## build the image
	PROGRAMS='./cmd/starlingd ./e2e/byzantine $(PROGRAMS)' ../build-image.sh $(STARLING_IMAGE)

homes: ## create the nodes' homes unless they exist
	go run ../homes --dir . --chain-id $(NETWORK)-1 $(HOMES)

up: image homes ## start the validators and the peer that lies
	$(COMPOSE) up -d

join: ## start a node that joins, trusting the newest header of validator-0
	trusted=$$(../trusted-header.sh $(RPC)) && echo "$$trusted" && env $$trusted $(COMPOSE) --profile join up -d joiner

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
