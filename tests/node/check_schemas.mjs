// Judge schemas by others' means: the official AsyncAPI parser, and a JSON Schema validator.
//
//     node check_schemas.mjs SCHEMAS MESSAGES
//
// SCHEMAS is a folder that `llmgw schemas export` wrote, MESSAGES one of golden messages. Prints
// one JSON object: what the parser had to say and how much it found, which schemas are none, and
// which messages do not keep to the schema of their type.

import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { Parser, fromFile } from "@asyncapi/parser";
import Ajv2020 from "ajv/dist/2020.js";
import addFormats from "ajv-formats";

const SUFFIX = ".schema.json";
const [schemas, messages] = process.argv.slice(2);

async function parsed() {
  const file = join(schemas, "asyncapi.yaml");
  const { document, diagnostics } = await fromFile(new Parser(), file).parse();
  return {
    diagnostics: diagnostics.map((d) => `${d.code} at ${d.path.join(".")}: ${d.message}`),
    operations: document?.allOperations().length ?? 0,
    payloads: document?.allMessages().filter((message) => message.hasPayload()).length ?? 0,
  };
}

// One validator a schema: they share names of definitions.
function compiled(broken) {
  const found = new Map();
  for (const file of readdirSync(schemas).filter((name) => name.endsWith(SUFFIX))) {
    const ajv = new Ajv2020({ allErrors: true, strict: true, allowUnionTypes: true });
    addFormats(ajv);
    try {
      const schema = JSON.parse(readFileSync(join(schemas, file)));
      found.set(file.replace(SUFFIX, ""), ajv.compile(schema));
    } catch (error) {
      broken.push(`${file}: ${error.message}`);
    }
  }
  return found;
}

function validated() {
  const broken = [];
  const invalid = [];
  const validators = compiled(broken);
  for (const file of readdirSync(messages).filter((name) => name.endsWith(".json"))) {
    const { payload } = JSON.parse(readFileSync(join(messages, file)));
    const validate = validators.get(payload.type.replace("llmgw.", ""));
    if (validate && !validate(payload)) {
      invalid.push(...validate.errors.map((e) => `${file}${e.instancePath}: ${e.message}`));
    }
  }
  return { broken, invalid, schemas: validators.size };
}

console.log(JSON.stringify({ ...(await parsed()), ...validated() }));
