// Print the log of an llmgw cluster, one JSON object a line: first what is there, then what comes.
//
//     npm install @nats-io/transport-node @nats-io/jetstream
//     node follow.mjs nats://127.0.0.1:4222 default [SEQUENCE]
//
// Starts at SEQUENCE (1 without it) and goes on over restarts of the server, in order, without a
// gap and without a double.

import { connect } from "@nats-io/transport-node";
import { DeliverPolicy, jetstream } from "@nats-io/jetstream";

const [url, cluster, sequence = "1"] = process.argv.slice(2);
const { host, username: user, password: pass } = new URL(url);
const client = await connect({
  servers: host,
  ...(user && { user, pass }),
  maxReconnectAttempts: -1,
  reconnectTimeWait: 500,
});
const consumer = await jetstream(client).consumers.get(`LLMGW_${cluster}_LOG`, {
  deliver_policy: DeliverPolicy.StartSequence,
  opt_start_seq: Number(sequence),
  filter_subjects: [`llmgw.v1.${cluster}.event.>`],
});
for await (const message of await consumer.consume({ idle_heartbeat: 1000 })) {
  const { type, data } = message.json();
  console.log(JSON.stringify({ sequence: message.seq, type, ...data }));
}
